"""What the referee calls rounding, and what it calls a fault: on checkpoints made on the spot, on the tiny ones, and on
a real model, where it was built (`make real-model`).

Every checkpoint answers prompts greedily (plain transformers, in its dtype). Those tokens are read by the reference,
by the old path (plain transformers, batches of four, padded on the left) and by other paths: clean ones, on which no
alarm may come, and ones with a planted fault. Clean paths are judged on two sets of rows, faults on the first. Clean
paths are judged again on RESAMPLED sets, drawn from all rows: the share of alarms there is the false-alarm rate.

Map: cases, tokens, paths, lines, the table, memory, the command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parity.judge.numerics import referee
from parity.judge.numerics.errors import FLOOR, Reading
from parity.judge.numerics.reading import OLD_ROWS, Reader, Scored, TokenRow, read_engine, read_probes, token_row
from parity.models import real_model
from parity.proof import checkpoints

ALARMS = 0.01  # of clean comparisons, at most
RESAMPLED = 10  # sets of rows for each clean path
REAL = "smollm2"
OTHER_DTYPE = {"bfloat16": "float16", "float16": "bfloat16"}
MODELS = Path(__file__).parents[2] / "golden/models"
ENGINE: Mapping[str, Any] = {
    "backend": "vllm",
    "max_model_len": 512,
    "progress": False,
    "vllm_kwargs": {"num_gpu_blocks_override": 96, "max_num_seqs": 32, "enforce_eager": True},
}

Scores = Sequence[Scored]
Say = Callable[[str], None]


# == Cases ==


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint in a dtype.   rows, tokens: of one set, of one answer.   shape: None for a trained one.
    moved: also with faults on vLLM."""

    name: str
    dtype: str
    shape: checkpoints.Shape | None = None
    rows: int = 20
    tokens: int = 64
    sets: int = 2
    vllm: bool = True
    moved: bool = False


def cases(*, quick: bool = False, only: str = "", dtype: str = "") -> list[Case]:
    if quick:
        return [Case("qwen3", "bfloat16", checkpoints.SHAPES[0], tokens=32, sets=1, vllm=False)]
    made = [
        Case(
            shape.name,
            kind,
            shape,
            rows=20 if kind == "bfloat16" else 12,  # a CPU takes five times as long over float16, which has less noise
            vllm=(shape.name, kind) != ("gemma2", "float16"),  # vLLM refuses it: numerical instability
            moved=(shape.name, kind) == ("qwen3", "bfloat16"),
        )
        for shape in checkpoints.SHAPES
        for kind in OTHER_DTYPE
    ]
    tiny = [Case("tiny-qwen3", kind) for kind in (*OTHER_DTYPE, "float32")]
    real = [Case(REAL, "bfloat16", rows=24, tokens=48), Case(REAL, "float16", rows=8, tokens=16)]
    known = [*made, *tiny, *real]
    wanted = only.split(",") if only else [case.name for case in known]
    return [case for case in known if case.name in wanted and dtype in ("", case.dtype)]


# == Tokens ==


def prompts_of(case: Case, folder: Path) -> list[list[int]]:
    """Random ids for random models; questions through the template for the trained one."""
    draw, count = random.Random(1), case.rows * case.sets
    if case.shape is not None:
        return [[draw.randrange(540) for _ in range(draw.randrange(12, 41))] for _ in range(count)]
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        for chat in chats_of(case, count)
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def chats_of(case: Case, count: int) -> list[list[dict[str, Any]]]:
    """Questions to a trained model. Those to the real one share its template's system message, as most users' do."""
    from parity.models.tasks import real_questions, text_tasks

    if case.name == REAL:
        return [[{"role": "user", "content": question}] for question in real_questions(count)]
    return [list(task.messages) for task in text_tasks(8 * count) if not task.tools][:count]


def answers_of(reader: Reader, prompts: Sequence[Sequence[int]], case: Case) -> list[list[int]]:
    """Greedy answers; of random models all of the same length."""
    import torch

    end = reader.model.config.get_text_config().eos_token_id
    answers = []
    for start in range(0, len(prompts), case.rows):
        some = prompts[start : start + case.rows]
        longest = max(map(len, some))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in some])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in some])
        made = reader.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=case.tokens,
            min_new_tokens=case.tokens if case.shape else 1,
            do_sample=False,
            pad_token_id=end,
        )[:, longest:].tolist()
        answers += [answer[: answer.index(end) + 1] if end in answer else answer for answer in made]
    return answers


# == Paths ==


@dataclass
class Paths:
    """What was read of one checkpoint.   kinds: path -> "clean", "fault" or "small"."""

    case: Case
    prompts: list[list[int]]
    rows: list[TokenRow]
    scores: dict[str, Scores]
    kinds: dict[str, str]
    probes: dict[str, list[Scored]]

    @property
    def first(self) -> list[TokenRow]:
        return self.rows[: self.case.rows]

    def add(self, kind: str, name: str, scores: Scores) -> None:
        self.scores[name], self.kinds[name] = scores, kind


def old_way(reader: Reader, rows: Sequence[TokenRow]) -> list[Scored]:
    return reader.read(rows, most_rows=OLD_ROWS, side="left")


def read_paths(case: Case, folder: Path, scratch: Path, say: Say) -> Paths:
    """One model at a time: the old path with the faults of a loaded model, the reference, the others, vLLM."""
    with Reader(str(folder), case.dtype, device="cpu") as reader:
        prompts = prompts_of(case, folder)
        answers = answers_of(reader, prompts, case)
        rows = [token_row(prompt, answer) for prompt, answer in zip(prompts, answers)]
        paths = Paths(case, prompts, rows, {}, {}, {})
        say(f"{sum(len(row.ids) for row in rows)} tokens")
        read_same(paths, reader)
        read_planted(paths, reader)
    say("old path, batches, planted faults")
    with Reader(str(folder), "float32", device="cpu") as reader:
        paths.scores["reference"] = reader.read(rows)
        paths.probes = read_probes(reader, rows)
        if case.dtype != "float32":
            paths.add("fault", f"float32 for {case.dtype}", old_way(reader, paths.first))
    say("reference and probes")
    read_others(paths, folder, scratch)
    say("attention, dtypes, configs")
    if case.vllm:
        read_vllm(paths, folder, scratch)
        say("vLLM")
    return paths


def read_same(paths: Paths, reader: Reader) -> None:
    """The same model in other batches."""
    rows = paths.rows
    paths.scores["old"] = old_way(reader, rows)
    paths.add("clean", "alone", reader.read(rows, most_rows=1))
    paths.add("clean", "batch of 8", reader.read(rows, most_rows=8, side="left"))
    paths.add("clean", "batch of 8, padded right", reader.read(rows, most_rows=8))
    paths.add("clean", "other order", old_way(reader, rows[::-1])[::-1])


def read_planted(paths: Paths, reader: Reader) -> None:
    for fault in checkpoints.LOADED:
        if fault.fits(paths.case.name):
            with fault.plant(reader.model):
                paths.add("small" if fault.small else "fault", fault.name, old_way(reader, paths.first))


def read_others(paths: Paths, folder: Path, scratch: Path) -> None:
    """Another attention implementation, another dtype, another config."""
    case = paths.case
    gemma = case.name == "gemma2"  # its own attention is eager: sdpa leaves its cap out
    with Reader(str(folder), case.dtype, device="cpu", attention="sdpa" if gemma else "eager") as reader:
        kind, name = ("fault", "sdpa, which leaves the cap out") if gemma else ("clean", "eager attention")
        paths.add(kind, name, old_way(reader, paths.first if gemma else paths.rows))
    if case.dtype in OTHER_DTYPE:
        other = OTHER_DTYPE[case.dtype]
        with Reader(str(folder), other, device="cpu") as reader:
            paths.add("fault", f"{other} for {case.dtype}", old_way(reader, paths.first))
    for name, change in checkpoints.FILES.items():
        if checkpoints.can_have(name, case.name):
            copy = checkpoints.copy_with(folder, scratch / name.replace(" ", "-"), change)
            with Reader(str(copy), case.dtype, device="cpu") as reader:
                paths.add("small" if "1.001" in name else "fault", name, old_way(reader, paths.first))


def read_vllm(paths: Paths, folder: Path, scratch: Path) -> None:
    import gen_engine

    def read(place: Path, dtype: Any, rows: Sequence[TokenRow]) -> list[Scored]:
        with gen_engine.load(str(place), dtype=dtype, **ENGINE) as engine:
            return read_engine(engine, rows)

    case = paths.case
    paths.add("clean", "vLLM", read(folder, case.dtype, paths.rows))
    if case.moved:
        theta = scratch / "rope theta x 1.01".replace(" ", "-")
        paths.add("fault", "vLLM, rope theta x 1.01", read(theta, case.dtype, paths.first))
        paths.add("fault", "vLLM, float16 for bfloat16", read(folder, "float16", paths.first))


# == Lines ==


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison.   seen: the statistics that are alarms.   nearest: of those along a direction, the largest.
    times: the new errors' size by the old one's, not clipped.   good: as it should be.
    inexact: the outcome without float32 (see `INEXACT`)."""

    checkpoint: str
    dtype: str
    path: str
    kind: str
    rows: int
    tokens: int
    outcome: str
    size: float
    times: float
    seen: str
    nearest: str
    like: str
    sees: float
    more: int
    good: bool
    inexact: str
    said: str


def lines_of(paths: Paths) -> Iterator[Line]:
    count = paths.case.rows
    for path, kind in paths.kinds.items():
        for start in range(0, len(paths.scores[path]), count):
            yield line_of(paths, path, kind, range(start, start + count))


def resampled(paths: Paths) -> Iterator[str]:
    """The outcome of each clean path on sets of rows that are drawn from all of them."""
    draw = random.Random(2)
    for path, kind in paths.kinds.items():
        for _ in range(RESAMPLED if kind == "clean" else 0):
            places = draw.sample(range(len(paths.rows)), paths.case.rows)
            yield referee.judge(readings(paths, path, places), dtype=paths.case.dtype).outcome


def line_of(paths: Paths, path: str, kind: str, places: Sequence[int]) -> Line:
    case = paths.case
    verdict = referee.judge(readings(paths, path, places), dtype=case.dtype)
    without = ""
    if "eager attention" in paths.scores and path != "eager attention":
        swapped = readings(paths, path, places, reference="old", old="eager attention")
        without = referee.judge(swapped, dtype=case.dtype, exact=False).outcome
    good = kind == "small" or (verdict.outcome == "shifted") == (kind == "fault")
    if " for " in path and "16" in path + case.dtype:
        good = verdict.like == path.removeprefix("vLLM, ").split(" for ")[0]
    seen = ", ".join(f"{e.name} {e.value:.2f}" for e in verdict.seen)
    noise = verdict.noise
    size = verdict.estimates[0].value if verdict.estimates else float("nan")
    largest = max(verdict.estimates[5:], key=lambda e: abs(e.value), default=None)
    nearest = "" if largest is None else f"{largest.name} {largest.value:+.2f} ± {largest.high - largest.value:.2f}"
    return Line(
        case.name, case.dtype, path, kind, verdict.rows, noise.tokens, verdict.outcome, size,
        noise.new / max(noise.old, FLOOR), seen, nearest,
        verdict.like, verdict.sees, verdict.more, good, without, str(verdict),
    )  # fmt: skip


def readings(
    paths: Paths, path: str, places: Sequence[int], *, reference: str = "reference", old: str = "old"
) -> list[Reading]:
    truth, before, now = (paths.scores[name] for name in (reference, old, path))
    probes = paths.probes if reference == "reference" else {}
    return [
        Reading(
            truth[k].logprobs,
            before[k].logprobs,
            now[k].logprobs,
            prompt=len(paths.prompts[k]) - 1,
            probes={name: scores[k].logprobs for name, scores in probes.items()},
            ids=paths.rows[k].ids,
        )
        for k in places
    ]


# == The table ==


KINDS = (("clean", "clean"), ("fault", "faults"), ("small", "small faults, below the margins"))


def summary(lines: Sequence[Line], again: Sequence[str]) -> list[str]:
    """again: outcomes of the resampled clean comparisons."""
    clean = [line for line in lines if line.kind == "clean"]
    faults = [line for line in lines if line.kind == "fault"]
    alarms = [line for line in clean if line.outcome == "shifted"]
    held = sum(line.outcome == "holds" for line in clean)
    without = [line for line in clean if line.inexact]
    found = [line for line in faults if line.inexact]
    rate = again.count("shifted") / max(1, len(again))
    return [
        f"{len(again)} resampled clean comparisons: {again.count('shifted')} alarms ({rate:.1%}), "
        f"{again.count('holds')} hold",
        f"{len(clean)} clean comparisons: {len(alarms)} alarms, {held} hold, "
        f"{len(clean) - held - len(alarms)} cannot tell",
        f"{len(faults)} faults: {sum(line.outcome == 'shifted' for line in faults)} caught, "
        f"{sum(line.good for line in faults)} caught and, where it is a dtype, named",
        f"without float32: {sum(line.inexact == 'shifted' for line in without)} alarms in {len(without)} clean ones, "
        f"{sum(line.inexact == 'shifted' for line in found)} of {len(found)} faults caught",
    ]


def markdown(lines: Sequence[Line], again: Sequence[str] = ()) -> str:
    """A row for each path, a column for each checkpoint. Of a clean path the sizes of both sets of rows; of a fault its
    size, the verdict, and what it looks like; of a small one what of it goes with a probe, in units of the noise."""
    columns = list(dict.fromkeys((line.checkpoint, line.dtype) for line in lines))
    head = "| | " + " | ".join(f"{name} {dtype}" for name, dtype in columns) + " |"
    rule = "|---" * (len(columns) + 1) + "|"
    parts = [*summary(lines, again), ""]
    for kind, title in KINDS:
        paths = list(dict.fromkeys(line.path for line in lines if line.kind == kind))
        parts += [f"**{title}**", "", head, rule]
        for path in paths:
            cells = [
                "; ".join(cell(line) for line in lines if (line.path, line.checkpoint, line.dtype) == (path, *column))
                for column in columns
            ]
            parts.append(f"| {path} | " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts)


def cell(line: Line) -> str:
    marks = {"holds": "", "shifted": " **shifted**", "cannot tell": f" cannot tell, {line.more} more"}
    like = f", like {line.like}" if line.like else ""
    like += f" ({line.nearest})" if line.kind == "small" else ""
    wrong = "" if line.good else " (!)"
    size = f"{line.size:.2f}" if line.times < 3 else f"{line.times:.2g}"  # sizes are clipped
    return f"{size}{marks[line.outcome]}{like}{wrong}"


def prove(case: Case, say: Say) -> tuple[list[Line], list[str]]:
    """The lines of a checkpoint, and the outcomes of its resampled clean comparisons."""
    with tempfile.TemporaryDirectory(prefix="referee-") as folder:
        place = Path(folder)
        if case.name == REAL:
            saved = real_model.folder()
        elif case.shape is None:
            saved = MODELS / case.name
        else:
            saved = checkpoints.make(case.shape, case.dtype, place / "model")
            say("made")
        paths = read_paths(case, saved, place, say)
        return list(lines_of(paths)), list(resampled(paths))


# == Memory ==

BIG = checkpoints.Shape(
    "big vocabulary",
    "Qwen3Config",
    {"vocab_size": 151_936, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16},
)


def memory(rows: int, tokens: int = 256) -> str:
    """What reading takes beside a model of 151,936 words: rows of `tokens`, by the reference and by an engine."""
    import gen_engine

    draw = random.Random(0)
    given = [token_row([5], [draw.randrange(500) for _ in range(tokens)]) for _ in range(rows)]
    said = []
    with tempfile.TemporaryDirectory(prefix="referee-") as folder:
        model = str(checkpoints.make(BIG, "float32", Path(folder)))
        with Reader(model, "float32", device="cpu") as reader:
            reader.read(given[:1])
            said.append(f"reference {beside(lambda: reader.read(given)):.2f} GiB")
        with gen_engine.load(model, dtype="float32", progress=False) as engine:
            read_engine(engine, given[:1])
            said.append(f"hf engine {beside(lambda: read_engine(engine, given)):.2f} GiB")
    return f"{rows} rows x {tokens} tokens x {BIG.own['vocab_size']:,} words, beside the model: {', '.join(said)}"


def beside(read: Callable[[], Any]) -> float:
    """GiB of resident memory that a call takes at most, looked at ten times a second."""
    most, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            most.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        read()
    finally:
        done.set()
        thread.join()
    return (max(most) - most[0]) / 2**30


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


# == The command ==


def run_referee(given: argparse.Namespace) -> int:
    if given.memory:
        print(memory(given.memory))
        return 0
    wanted = cases(quick=given.quick, only=given.only, dtype=given.dtype)
    if not wanted:
        raise ValueError(f"--only {given.only}: there are {', '.join(dict.fromkeys(case.name for case in cases()))}")
    lines, again = run(wanted)
    print(markdown(lines, again))
    if given.out:
        given.out.with_suffix(".json").write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
        given.out.with_suffix(".md").write_text(markdown(lines, again))
    alarms = any(line.kind == "clean" and not line.good for line in lines)
    return int(alarms or again.count("shifted") > ALARMS * len(again))


def run(wanted: Sequence[Case]) -> tuple[list[Line], list[str]]:
    import transformers

    with contextlib.suppress(AttributeError):
        transformers.logging.disable_progress_bar()
    lines: list[Line] = []
    again: list[str] = []
    begun = time.monotonic()
    for number, case in enumerate(wanted, 1):

        def say(what: str, head: str = f"{number} of {len(wanted)}: {case.name} {case.dtype}") -> None:
            print(f"{head}: {what} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)

        own, resamples = prove(case, say)
        lines += own
        again += resamples
    return lines, again
