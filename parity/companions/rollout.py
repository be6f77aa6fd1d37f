# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""What a rollout did, step by step, and recorded answers that are forced again: a companion of
gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="rollout"`, and

    with trace(engine, "rollouts", worker_id=0) as rollout:
        engine.generate_text_batch(requests, options)
    rollout.save_cases("cases.parquet")                         # Parquet; needs pyarrow
    replay(engine, "cases.parquet", options)                    # the same ids again, token by token

Steps are seen from outside: the engine tells an Observer of its loop, and on vLLM methods of the
running engine are wrapped for as long as a trace lasts.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["trace", "Trace", "replay", "Case", "read_cases", "write_cases",
           "Mismatch", "mismatch_of", "rollout_mismatch", "Processed", "processed"]  # fmt: skip

# == Cases ==


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded answer, to be forced again: the prompt as the model saw it, with its special
    tokens, and the ids.

    messages: what it was rendered from, where it was; for readers, a replay takes `prompt`.
    """

    id: int
    prompt: str
    messages: tuple[Mapping[str, Any], ...] | None
    token_ids: tuple[int, ...]
    text: str


COLUMNS = [f.name for f in dataclasses.fields(Case)]
# What a Case that holds something else ends in; pyarrow's errors are of these kinds too.
NOT_AS_PROMISED = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # not there, as a rule
            path.unlink()


def put_back(paths: Sequence[Path], parts: Sequence[Path], olds: Sequence[Path]) -> None:
    """What stood there before a process was killed in the midst of its renames; all of `parts`
    were whole by then."""
    if not any(old.exists() for old in olds):
        return
    done = not any(part.exists() for part in parts) and all(path.exists() for path in paths)
    for path, part, old in zip(paths, parts, olds):
        if done:
            old.unlink(missing_ok=True)
        elif old.exists():
            os.replace(old, path)
        elif not part.exists():  # it has become what stands there now, where nothing stood
            path.unlink(missing_ok=True)


def take_places(
    paths: Sequence[Path],
    parts: Sequence[Path],
    olds: Sequence[Path],
    moved: list[tuple[Path, Path]],
) -> None:
    """Rename what stands at `paths` to `olds`, and `parts` to `paths`; `moved` tells how far it
    came."""
    standing = [(path, old) for path, old in zip(paths, olds) if path.exists()]
    for source, target in [*standing, *zip(parts, paths)]:
        os.replace(source, target)
        moved.append((source, target))
    remove(olds)


def undo(
    moved: Sequence[tuple[Path, Path]], parts: Sequence[Path], olds: Sequence[Path]
) -> list[str]:
    """Take renames back. Returns the names of files that could not be brought back."""
    for source, target in reversed(moved):
        with contextlib.suppress(OSError):
            os.replace(target, source)
    kept = [old.name for old in olds if old.exists()]
    if not kept:  # else the next one has to see how far this one came
        remove(parts)
    return kept


@contextlib.contextmanager
def written_whole(*paths: Path) -> Iterator[list[Path]]:
    """Names beside `paths` to write to, which take their places all together when the block ends
    well, or not at all.

    The names are always the same: what a killed process left is put back, or written over, by the
    next one.
    """
    parts = [path.with_name(f".{path.name}.part") for path in paths]
    olds = [path.with_name(f".{path.name}.old") for path in paths]
    moved: list[tuple[Path, Path]] = []
    try:
        put_back(paths, parts, olds)
        for path in paths:
            if path.exists() and not path.is_file():
                raise FileExistsError(f"{path.name} is there, and is no file")
        yield parts
        take_places(paths, parts, olds, moved)
    except BaseException as error:
        kept = undo(moved, parts, olds)
        if not isinstance(error, OSError):
            raise
        state = f"what stood there is kept as {', '.join(kept)}" if kept else "no file was changed"
        problem = f"{ge.short_repr(str(paths[0].parent))} cannot be written to: {error}"
        fix = f"see to the disk or the permissions; {state}"
        raise ge.EngineError(problem, fix=fix) from error


def arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as gone:
        raise ge.BackendMissing(
            f"{gone.name} is not installed", fix="run: pip install pyarrow"
        ) from gone


def write_cases(path: str | os.PathLike[str], cases: Iterable[Case]) -> None:
    """A Parquet file with the columns of Case; messages as JSON."""
    pyarrow, parquet = arrow()
    kinds = (
        pyarrow.int64(),
        pyarrow.string(),
        pyarrow.string(),
        pyarrow.list_(pyarrow.int64()),
        pyarrow.string(),
    )
    try:
        rows = [{name: getattr(case, name) for name in COLUMNS} for case in cases]
        for row in rows:
            row["messages"] = row["messages"] and json.dumps(row["messages"], ensure_ascii=False)
        table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(list(zip(COLUMNS, kinds))))
    except NOT_AS_PROMISED as error:
        raise ge.RequestError(f"no cases to write: {error}", fix="give a list of Case") from error
    with (
        written_whole(place_of(path)) as [part],
        part.open("wb") as stream,
    ):  # not by name: it might be s3://...
        parquet.write_table(table, stream)


def place_of(path: Any) -> Path:
    """A path on this machine. Raises OptionError for what cannot be one."""
    named = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    try:
        if isinstance(named, str) and Path(named).name and b"\0" not in os.fsencode(named):
            return Path(named)
    except UnicodeEncodeError:  # half a character
        pass
    raise ge.OptionError(
        f"the path is {ge.short_repr(path)}", fix="give the name of a file or a folder"
    )


def read_cases(path: str | os.PathLike[str]) -> list[Case]:
    """What write_cases wrote, from a file on this machine. Raises RequestError for a file that is
    none."""
    pyarrow, parquet = arrow()
    if not os.path.isfile(place_of(path)):  # nor a pipe, which might never end
        raise ge.RequestError(
            f"there is no case file {ge.short_repr(path)}", fix="give one that was saved here"
        )
    try:
        with open(
            path, "rb"
        ) as stream:  # not by name: pyarrow would take s3://... and open the network
            rows = parquet.read_table(stream, columns=COLUMNS).to_pylist()
        return [case_of(row) for row in rows]
    except (OSError, pyarrow.ArrowException, *NOT_AS_PROMISED) as error:
        raise ge.RequestError(
            f"{os.fspath(path)} is no case file: {error}", fix="give one that was saved here"
        ) from error


def case_of(row: Mapping[str, Any]) -> Case:
    """One row of a case file. Raises KeyError, TypeError or ValueError for one that is none."""
    messages = tuple(json.loads(row["messages"])) if row["messages"] else None
    ids = tuple(row["token_ids"])
    if not isinstance(row["prompt"], str) or not all(type(token_id) is int for token_id in ids):
        raise TypeError(f"case {row['id']} has no prompt or no token ids")
    if type(row["id"]) is not int or not isinstance(row["text"], str):
        raise TypeError(f"case {row['id']} has no number or no text")
    if messages is not None and not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"case {row['id']} has messages that are none")
    return Case(row["id"], row["prompt"], messages, ids, row["text"])


def replay(
    engine: ge.GenerationEngine,
    cases: str | os.PathLike[str] | Iterable[Case],
    options: ge.GenerationOptions | Mapping[str, Any] | None = None,
    **how: Any,
) -> list[ge.GenerationResult]:
    """Run recorded cases (or a case file) again, each forced to its recorded ids; one result per
    case, in order.

    how: on_error, as generate_text_batch takes it.
    Raises what generate_text_batch raises, and RequestError for a file that holds no cases.
    """
    recorded: Any = cases
    if not isinstance(recorded, (list, tuple)):
        recorded = read_cases(recorded)
    given = ge.build(ge.GenerationOptions, options)
    try:
        most = max(given.max_new_tokens, *(len(case.token_ids) for case in recorded))
        prompts = [
            engine.tokenizer(case.prompt, add_special_tokens=False)["input_ids"]
            for case in recorded
        ]
    except NOT_AS_PROMISED as error:
        raise ge.RequestError(
            f"no cases to replay: {error}", fix="give a case file, or a list of Case"
        ) from error
    given = dataclasses.replace(
        given, replay=tuple(case.token_ids for case in recorded), max_new_tokens=most
    )
    return engine.generate_text_batch([{"prompt_token_ids": ids} for ids in prompts], given, **how)


# == Rows of the three files ==


class Advance(NamedTuple):
    """What one request got in one step: tokens, guesses that were judged, guesses that the model
    agreed with."""

    delivered: int
    drafted: int = 0
    matched: int = 0


NOTHING = Advance(0)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ended: seconds of perf_counter.   interval: seconds since the step before it, or
    since the call began.

    spent: seconds by "draft" and "verify", where they were measured; "idle", where that was, too:
    guesses that are made
        elsewhere take no time from the step.   view: what the scheduler saw.
    """

    ended: float
    interval: float
    spent: Mapping[str, float]
    view: Mapping[str, float]
    advances: dict[int, Advance]

    @property
    def tokens(self) -> int:
        return sum(advance.delivered for advance in self.advances.values())

    def row(self, first: float) -> dict[str, Any]:
        served = sum(advance.delivered > 0 for advance in self.advances.values())
        ms = {what: 1e3 * seconds for what, seconds in self.spent.items()}
        unspent = 1e3 * self.interval - sum(ms.values()) if "verify" in ms else None
        return {
            "step_tgs": self.tokens / served / self.interval if served else None,
            "step_tokens": self.tokens,
            "cur_acc_len": self.tokens / served if served else None,
            "step_batchsize": served,
            "step_ts": self.ended - first,
            "step_interval": 1e3 * self.interval,
            "draft_nstep": max((advance.drafted for advance in self.advances.values()), default=0),
            "draft_time": ms.get("draft"),
            "verify_time": ms.get("verify"),
            "idle_time": ms.get("idle", unspent),
            **{
                name: self.view.get(name)
                for name in ("running", "waiting", "preempted", "kv_cache_usage")
            },
        }


@dataclass(slots=True)
class TracedRequest:
    prompt_length: int
    arrived: float
    ended: float | None = None
    so_far: Advance = NOTHING

    def row(self, number: int, advances: Sequence[Advance]) -> dict[str, Any]:
        drafted = sum(a.drafted for a in advances)
        matched = sum(a.matched for a in advances)
        return {
            "req_id": number,
            "rollout_time": (self.ended or self.arrived) - self.arrived,
            "rollout_step": len(advances),
            "prompt_length": self.prompt_length,
            "response_length": sum(a.delivered for a in advances),
            "spec_accept_rate": matched / drafted if drafted else None,
            "spec_matched_total": matched,
            "spec_draft_total": drafted,
            "spec_accepted_total": sum(min(a.matched, a.delivered) for a in advances),
        }


PERF_COLUMNS = (
    "step_tgs",
    "step_tokens",
    "cur_acc_len",
    "step_batchsize",
    "step_ts",
    "step_interval",
    "draft_nstep",
    "draft_time",
    "verify_time",
    "idle_time",
    "running",
    "waiting",
    "preempted",
    "kv_cache_usage",
)
REQUEST_COLUMNS = (
    "req_id",
    "rollout_time",
    "rollout_step",
    "prompt_length",
    "response_length",
    "spec_accept_rate",
    "spec_matched_total",
    "spec_draft_total",
    "spec_accepted_total",
)
MARKOV_COLUMNS = ("acc_token_num", "draft_token_num", "verify_token_num", "cur_step", "req_id")


def rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file; a column that no row has a value for was not measured, and is left out."""
    kept = [name for name in columns if not rows or any(row[name] is not None for row in rows)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(kept)
        for row in rows:
            writer.writerow([rounded(row[name]) for name in kept])


# == The trace ==


class Trace(ge.Observer):
    """What the generate calls inside `with trace(engine, directory) as rollout:` did, step by step.

    At the block's end, if that is reached without an exception, the directory holds (times in s or
    ms, see README)
    worker_<id>_perf.csv      a row per step: tokens, how many requests got some, times, the
    scheduler's view
    worker_<id>_request.csv   a row per request, by response_length, then req_id
    worker_<id>_markov.csv    a row per request and step, by req_id, then cur_step, which counts
    the rows of perf.csv Requests are numbered as they come to the backend: answers from a cache,
    and the equals of a greedy one, do not. Counts are always there; what cannot be measured is a
    column less, never a zero.
    idle: the loop times how long it waits; else that is what guesses and model leave of a step.
    joins: rows that arrive join those that run, and begin no call.
    """

    def __init__(
        self,
        engine: ge.GenerationEngine,
        directory: str | os.PathLike[str],
        worker_id: int,
        *,
        idle: bool = False,
    ) -> None:
        self.engine = engine
        self.directory = Path(directory)
        self.worker_id = worker_id
        self.idle = idle
        self.joins = False
        self.steps: list[Step] = []
        self.requests: list[TracedRequest] = []
        self.cases: list[Case] = []
        self.unwritable: list[int] = []
        self.spent: dict[str, float] = {}
        self.probe = (
            StepProbe(engine.model, self.timed) if engine.config.backend == "vllm" else None
        )
        self._live: StepProbe | None = None
        self._inner, self._last = 0.0, 0.0
        self._open: dict[int, ge.RowWatch] = {}  # of the call that runs: those that are not over

    @property
    def files(self) -> list[Path]:
        return [
            self.directory / f"worker_{self.worker_id}_{kind}.csv"
            for kind in ("perf", "request", "markov")
        ]

    def now(self) -> float:
        """Seconds, once the accelerator has done what it was given."""
        torch = importlib.import_module("torch")
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's time as `what`, less what is timed inside it."""
        began = self.now()
        outer = self._inner
        self._inner = 0.0
        try:
            yield
        finally:
            took = self.now() - began
            self.spend(what, took - self._inner)
            self._inner = outer + took

    def spend(self, what: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self.spent[what] = self.spent.get(what, 0.0) + seconds

    def arrived(self, backend: str, rows: Sequence[ge.RowWatch]) -> None:
        now = self.now()
        first = len(self.requests)
        if not self.joins:
            self._live = self.probe if backend == "vllm" else None
            self._last = now
            self._open = {}
            self.spent.clear()
        self.requests += [TracedRequest(row.prompt_tokens, now) for row in rows]
        self._open.update(enumerate(rows, first))
        if self._live is not None:
            self._live.arrived(rows)

    def stepped(self) -> None:
        ended = self.now()
        if self._live is not None:
            self._live.count_guesses()
        advances = {number: self._advance(number) for number in self._open}
        advances = {number: got for number, got in advances.items() if any(got)}
        waiting = sum(not watch.ids for watch in self._open.values())
        hf = {"running": len(self._open) - waiting, "waiting": waiting}
        view = hf if self._live is None else self._live.viewed()
        spent = {what: self.spent.get(what, 0.0) for what in self._clocks()}
        self.steps.append(Step(ended, ended - self._last, spent, view, advances))
        for number, watch in list(self._open.items()):
            if not watch.over:
                continue
            if watch.error is None:
                self.requests[number].ended = ended
            else:
                self._retract([number])
            del self._open[number]
        self._last = ended
        self.spent.clear()

    def restarted(self, rows: Iterable[ge.RowWatch]) -> None:
        again = set(map(id, rows))
        self._retract(number for number, watch in self._open.items() if id(watch) in again)

    def answered(self, prompts: Sequence[Any], results: Sequence[Any]) -> None:
        """Keep text answers as cases, each sample one."""
        for prompt, result in zip(prompts, results):
            if isinstance(result, ge.GenerationResult) and not prompt.images:
                for sample in result.samples or (result,):
                    self._keep_case(prompt.messages, sample)

    def advances(self) -> list[tuple[int, int, Advance]]:
        """(request, step, what it got), of the requests that are over, in this order."""
        kept = []
        for k, step in enumerate(self.steps):
            for number, got in step.advances.items():
                if self.requests[number].ended is not None:
                    kept.append((number, k, got))
        return sorted(kept, key=lambda row: row[:2])

    def tables(self) -> list[tuple[Sequence[str], list[dict[str, Any]]]]:
        """(columns, rows) of the three files."""
        self._retract(
            number for number, request in enumerate(self.requests) if request.ended is None
        )
        markov = self.advances()
        own: dict[int, list[Advance]] = {}
        for number, request in enumerate(self.requests):
            if request.ended is not None:
                own[number] = []
        for number, _, got in markov:
            own[number].append(got)
        requests = [self.requests[number].row(number, gots) for number, gots in own.items()]
        requests.sort(key=lambda row: (row["response_length"], row["req_id"]))
        first = self.steps[0].ended if self.steps else 0.0
        steps = [
            (got.delivered, got.drafted, got.drafted + 1, k, number) for number, k, got in markov
        ]
        return [
            (PERF_COLUMNS, [step.row(first) for step in self.steps]),
            (REQUEST_COLUMNS, requests),
            (MARKOV_COLUMNS, [dict(zip(MARKOV_COLUMNS, row)) for row in steps]),
        ]

    def write(self) -> None:
        """The three files, whole or not at all; those of an earlier trace of this worker are
        replaced."""
        with written_whole(*self.files) as parts:
            for part, (columns, rows) in zip(parts, self.tables()):
                write_table(part, columns, rows)

    def save_cases(self, path: str | os.PathLike[str]) -> None:
        """The text answers of the trace as a case file (Parquet), for `replay`. Needs pyarrow.

        Raises RequestError where a prompt's ids are not what its text would be tokenized to.
        """
        if self.unwritable:
            problem = "its prompt's ids are not those of their text"
            raise ge.RequestError(
                problem, fix="give the prompt as text or messages", index=self.unwritable[0]
            )
        write_cases(path, self.cases)

    def _clocks(self) -> Sequence[str]:
        """What is timed; a part that did not run took 0 s."""
        if self._live is not None:
            return self._live.clocks
        guessed = ("verify",) if self.engine.config.decoder is None else ("draft", "verify")
        return (*guessed, "idle") if self.idle else guessed

    def _advance(self, number: int) -> Advance:
        watch = self._open[number]
        request = self.requests[number]
        now = Advance(len(watch.ids), watch.drafted, watch.matched)
        before = request.so_far
        request.so_far = now
        return Advance(*(new - old for new, old in zip(now, before)))

    def _retract(self, numbers: Iterable[int]) -> None:
        """What these requests got so far does not count: they run again, or failed."""
        for number in list(numbers):
            self.requests[number].so_far = NOTHING
            for step in self.steps:
                step.advances.pop(number, None)

    def _keep_case(self, messages: Any, sample: ge.GenerationResult) -> None:
        tokenizer = self.engine.tokenizer
        prompt = tokenizer.decode(
            list(sample.prompt_token_ids),
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        if (
            tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"])
            != sample.prompt_token_ids
        ):
            self.unwritable.append(len(self.cases))
        self.cases.append(Case(len(self.cases), prompt, messages, sample.token_ids, sample.text))


@contextlib.contextmanager
def trace(
    engine: ge.GenerationEngine, directory: str | os.PathLike[str], worker_id: int = 0
) -> Iterator[Trace]:
    """Write what the generate calls inside the block do, step by step, as three CSV files: see
    Trace.

    No file is written if the block raises. Raises UnsupportedError where steps cannot be seen,
    EngineError where the files cannot be written.
    """
    if type(worker_id) is not int or not 0 <= worker_id <= sys.maxsize:
        raise ge.OptionError(
            f"worker_id is {ge.short_repr(worker_id)}",
            fix=f"it must be a whole number, 0 to {sys.maxsize}",
        )
    try:
        place_of(directory).mkdir(
            parents=True, exist_ok=True
        )  # before the work: what cannot be is said now
    except OSError as error:
        raise ge.EngineError(
            f"no directory for a trace: {str(error)[:300]}", fix="point it elsewhere"
        ) from error
    rollout = Trace(engine, directory, worker_id)
    with (
        engine.observed(rollout),
        rollout.probe.attached() if rollout.probe else contextlib.nullcontext(),
    ):
        yield rollout
    rollout.write()


# == vLLM ==


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a method of one object, for a while."""
    is_own = name in vars(owner)
    method = getattr(owner, name)
    setattr(owner, name, wrap(method))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, method)
        else:
            delattr(owner, name)


class StepProbe:
    """Watches vLLM's engine core from outside while it steps, by wrapping methods of the running
    objects.

    "verify" is the executor's time for the model and its sampling, less "draft", the drafter's.
    The drafter runs at the end of a step, so its time stands in the step before the one in which
    its guesses are judged.
    """

    def __init__(self, llm: Any, timed: Callable[[str], Any]) -> None:
        engine = llm.llm_engine
        if not hasattr(engine.engine_core, "engine_core"):
            problem = "vLLM's engine runs in a process of its own, where no step can be traced"
            fix = "unset VLLM_ENABLE_V1_MULTIPROCESSING, or leave the trace out"
            raise ge.UnsupportedError(problem, fix=fix)
        if (
            engine.vllm_config.scheduler_config.async_scheduling
        ):  # outputs would lag a step behind what was scheduled
            fix = "load with vllm_kwargs={'async_scheduling': False}"
            raise ge.UnsupportedError(
                "vLLM schedules ahead, so that steps cannot be told apart", fix=fix
            )
        self.core = engine.engine_core.engine_core
        self.timed = timed
        self.rows: Sequence[ge.RowWatch] = ()
        self.requests: list[Any] = []
        self.judged: list[int] = []
        self.view: dict[str, float] = {}
        self.preemptions = 0
        worker = getattr(getattr(self.core.model_executor, "driver_worker", None), "worker", None)
        self.drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
        guesses = engine.vllm_config.speculative_config is not None
        self.clocks: tuple[str, ...] = () if guesses else ("verify",)
        if self.drafter is not None:
            self.clocks = ("draft", "verify")

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        executor = self.core.model_executor
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(executor, "execute_model", self._viewing))
            if hasattr(executor, "sample_tokens"):
                stack.enter_context(replaced(executor, "sample_tokens", self._timing("verify")))
            if self.drafter is not None:
                stack.enter_context(replaced(self.drafter, "propose", self._timing("draft")))
            yield

    def arrived(self, rows: Sequence[ge.RowWatch]) -> None:
        self.rows = rows
        self.requests = []
        self.preemptions = 0
        self.view = {}
        self.judged = [0] * len(rows)  # rounds that have been counted

    def count_guesses(self) -> None:
        """Tell each row what was guessed for it and what of that was right, from vLLM's own
        count."""
        for place, (row, request) in enumerate(zip(self.rows, self.requests)):
            metrics = getattr(request, "spec_decode_metrics", None)
            if metrics is not None:
                row.drafted += sum(metrics.per_step_drafted[self.judged[place] :])
                row.matched += sum(metrics.per_step_accepted[self.judged[place] :])
                self.judged[place] = len(metrics.per_step_drafted)

    def viewed(self) -> dict[str, float]:
        """What the scheduler saw in the step that has just ended."""
        if not all(hasattr(request, "num_preemptions") for request in self.requests):
            return self.view  # vLLM 0.11 does not count them
        preemptions = sum(request.num_preemptions for request in self.requests)
        view = {**self.view, "preempted": preemptions - self.preemptions}
        self.preemptions = preemptions
        return view

    def _timing(self, what: str) -> Callable[[Any], Any]:
        def wrap(method: Any) -> Any:
            def act(*args: Any, **kwargs: Any) -> Any:
                with self.timed(what):
                    return method(*args, **kwargs)

            return act

        return wrap

    def _viewing(self, execute: Any) -> Any:
        """Before the model runs, what the scheduler has just decided."""

        def act(*args: Any, **kwargs: Any) -> Any:
            scheduler = self.core.scheduler
            if (
                not self.requests
            ):  # in the order of their adding; later they leave the scheduler as they end
                self.requests = list(scheduler.requests.values())
            running, waiting = scheduler.get_request_counts()
            self.view = {
                "running": running,
                "waiting": waiting,
                "kv_cache_usage": scheduler.kv_cache_manager.usage,
            }
            return self._timing("verify")(execute)(*args, **kwargs)

        return act


# == A trainer's log-probabilities beside the rollout's ==


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far two readings of the same tokens are apart. d = new - old, nats a token; w = exp(d).

    mean, most: of |d|.   k3: mean of w - 1 - d, an estimate of KL(old, new) where tokens were
    sampled from old.   tmpe: mean exp|d|, which gates at 1.05 use.   ess: effective sample size of
    the weights w, as a part of the tokens.   worst_row, worst_step: where |d| is largest.
    rounding: the same of the engine beside itself, where it was asked for: what rounding alone
        gives with this model, type and these answers. A gate belongs above it.
    """

    tokens: int
    mean: float
    most: float
    k3: float
    tmpe: float
    ess: float
    worst_row: int
    worst_step: int
    rounding: Mismatch | None = None


FARTHEST = (
    80.0  # nats: exp of more has no finite square in float64 sums; such a row is broken anyway
)


@dataclass(frozen=True, slots=True)
class Gap:
    """What a token's log-probability is more on the new side, clipped to FARTHEST."""

    nats: float
    row: int
    step: int

    @property
    def size(self) -> float:
        return abs(self.nats)


def gaps_between(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[Gap]:
    """The gap of each token. Raises RequestError for a number that is not finite."""
    gaps = []
    for row, (before, after) in enumerate(zip(old, new)):
        for step, (a, b) in enumerate(zip(before, after)):
            nats = b - a
            if not math.isfinite(nats):
                problem = "a log-probability is no finite number"
                raise ge.RequestError(problem, fix="leave such rows out")
            gaps.append(Gap(math.copysign(min(abs(nats), FARTHEST), nats), row, step))
    return gaps


def mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def mismatch_of(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Mismatch:
    """Raises RequestError where the two are not of the same tokens, or of none."""
    if [len(row) for row in old] != [len(row) for row in new] or not any(old):
        problem = "log-probabilities of other tokens, or of none"
        raise ge.RequestError(
            problem, fix="give one number for each token of each row, on both sides"
        )
    gaps = gaps_between(old, new)
    weights = [math.exp(gap.nats) for gap in gaps]
    worst = max(gaps, key=lambda gap: gap.size)
    return Mismatch(
        tokens=len(gaps),
        mean=mean(gap.size for gap in gaps),
        most=worst.size,
        k3=mean(math.expm1(gap.nats) - gap.nats for gap in gaps),
        tmpe=mean(math.exp(gap.size) for gap in gaps),
        ess=sum(weights) ** 2 / sum(weight**2 for weight in weights) / len(gaps),
        worst_row=worst.row,
        worst_step=worst.step,
    )


def rollout_pair(result: ge.GenerationResult) -> tuple[dict[str, Any], tuple[int, ...]]:
    """A rollout as score_batch takes it: its prompt, with its adapter, and its answer."""
    request = {"prompt_token_ids": result.prompt_token_ids, "adapter": result.adapter}
    return request, result.token_ids


def read_again(
    engine: ge.GenerationEngine,
    results: Sequence[ge.GenerationResult],
    options: ge.GenerationOptions | Mapping[str, Any] | None,
) -> list[tuple[float, ...]]:
    """The engine's own log-probabilities of rollouts, read now; after the options' temperature and
    cuts, if given."""
    pairs = [rollout_pair(result) for result in results]
    scores: Sequence[Any] = []
    if pairs:
        scores = engine.score_batch(pairs, logits=options is not None)
        check_version(engine, results)  # of now: training in place has moved it
    if options is not None:
        scores = processed(scores, options)
    return [tuple(map(float, scored.logprobs)) for scored in scores]


def rollout_mismatch(
    engine: ge.GenerationEngine,
    results: Sequence[ge.GenerationResult],
    *,
    logprobs: Sequence[Sequence[float]],
    options: ge.GenerationOptions | Mapping[str, Any] | None = None,
    rounding: bool = False,
) -> Mismatch:
    """A trainer's log-probabilities of rollouts against the engine's own, under the adapter of each
    result.

    results: the rollouts. Where they hold no log-probabilities (`logprobs=0` was not asked for) the
    engine reads them now.   logprobs: the trainer's, raw as the engine's are: before temperature
    and cuts.   options: where the trainer's are after these options' temperature and cuts; the
    engine's are then, too (see `processed`; on vllm: load with logits_hooks=True). An engine that
    was loaded with logprobs_mode="processed" has them already.
    rounding: read the answers a second time, in one pass over prompt and answer in place of token
    by token, and give the mismatch between the two as `rounding`. Default False.
    Raises RequestError for results of other weights than the engine has now, where it reads."""
    is_processed = engine.config.logprobs_mode == "processed"
    own: list[Any] = [result.logprobs for result in results]
    if options is not None and not is_processed:
        own = [None] * len(own)
    if is_processed and options is None and None in own:
        fix = "give the options that they were sampled with"
        raise ge.OptionError("results without the engine's processed logprobs", fix=fix)
    unread = [k for k, row in enumerate(own) if row is None]
    if unread and rounding:
        fix = "generate with logprobs=0, and without options here or with logprobs_mode='processed'"
        raise ge.OptionError("rounding of results without log-probabilities of their own", fix=fix)
    for k, row in zip(unread, read_again(engine, [results[k] for k in unread], options)):
        own[k] = row
    found = mismatch_of([row or () for row in own], logprobs)
    if rounding:
        again = read_again(engine, results, options)
        found = dataclasses.replace(found, rounding=mismatch_of(own, again))
    return found


def check_version(engine: ge.GenerationEngine, results: Sequence[ge.GenerationResult]) -> None:
    """Raise RequestError for results of other weights than the engine's."""
    for index, result in enumerate(results):
        if result.weight_version != engine.weight_version:
            problem = (
                f"the answer is of the weights {result.weight_version!r}, "
                f"the engine has {engine.weight_version!r}"
            )
            fix = "generate with logprobs=0, or compare before the update"
            raise ge.RequestError(problem, fix=fix, index=index)


@dataclass(frozen=True, slots=True)
class Processed:
    """What a response is under sampling options: after temperature, min_p, top_k and top_p.

    logprobs: float32 tensor [tokens], nats, among the tokens that the cuts keep; -inf for one that
        they do not.
    kept: bool tensor [tokens, vocabulary], what they keep.
    mass: float32 tensor [tokens], the probability of that before the cuts. A trainer that knows the
        temperature only has logprobs + log(mass).
    """

    logprobs: Any
    kept: Any
    mass: Any


def processed(
    scores: Sequence[ge.ScoreResult], options: ge.GenerationOptions | Mapping[str, Any]
) -> list[Processed]:
    """The distribution that tokens were sampled from, of what `score_batch(..., logits=True)`
    returns; with grad=True it carries gradient.

    Raises OptionError for greedy options, and for penalties, which depend on more than logits;
    RequestError for scores without logits."""
    options = ge.build(ge.GenerationOptions, options)
    if options.temperature == 0:
        raise ge.OptionError("greedy options sample nothing", fix="give them a temperature")
    if options.repetition_penalty != 1 or options.no_repeat_ngram_size is not None:
        fix = "leave them out, on both sides"
        raise ge.OptionError("penalties depend on more than a token's logits", fix=fix)
    if any(score.logits is None for score in scores):
        raise ge.RequestError("scores without logits", fix="score_batch(..., logits=True)")
    return [under_options(score, options) for score in scores]


def under_options(score: ge.ScoreResult, options: ge.GenerationOptions) -> Processed:
    torch = importlib.import_module("torch")
    logits = score.logits
    wanted = torch.tensor(score.token_ids, device=logits.device)[:, None]
    cut = logits
    for warper in ge.sampling_warpers(options):
        cut = warper(None, cut)  # none of them reads ids
    kept = cut > -math.inf
    chances = (logits / options.temperature).softmax(-1)
    return Processed(
        logprobs=cut.log_softmax(-1).gather(1, wanted)[:, 0],
        kept=kept,
        mass=chances.masked_fill(~kept, 0.0).sum(-1),
    )
